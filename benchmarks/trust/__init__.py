"""How far the library can be trusted: suites under hostile input, faults and load, with figures."""
