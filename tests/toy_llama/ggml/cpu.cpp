int cpu() { return 1; }
