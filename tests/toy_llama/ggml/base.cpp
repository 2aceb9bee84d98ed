int base() { return 1; }
