"""How people and programs reach the ledger."""
