"""New plans after a fault: a plan repaired or planned again on the faulty machine; see docs/catalog.md."""
