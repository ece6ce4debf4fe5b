"""Operators that the importer lacks or mistakes, in terms of others."""
