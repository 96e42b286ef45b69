//! Who a host is: its key, and whom it believes.
