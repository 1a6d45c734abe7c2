"""What all services share: configuration, errors, servers, channels, records, queue and ledger."""
