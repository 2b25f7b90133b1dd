"""Records in, figures out: no sockets, no clocks."""
