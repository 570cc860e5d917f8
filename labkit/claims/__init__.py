"""The documents' claims, and what this machine's runs say of each."""
