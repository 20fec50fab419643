"""Feishu (飞书) and Lark by their open API: folders, wiki spaces and single links; documents, sheets, bases and files."""
