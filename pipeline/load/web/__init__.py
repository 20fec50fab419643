"""Web sites: crawled politely, followed from one sync to the next."""
