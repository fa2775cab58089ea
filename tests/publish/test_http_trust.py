"""Whom `https://` trusts, and how it is trusted: signatures, tokens, certificates, and secrets that stay secret."""
