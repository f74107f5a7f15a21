"""What the processes of one router tell and ask each other."""
