"""What tests share: servers, worlds to retrieve in, data, clocks, browsers; nothing here is a test."""
