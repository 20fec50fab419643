"""What the Feishu connector keeps of documents, sheets and bases, as text: the vendor's blocks stay raw until here."""
