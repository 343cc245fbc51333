"""What was produced and is not yet safe elsewhere: arithmetic over positions. No bytes are moved here."""
