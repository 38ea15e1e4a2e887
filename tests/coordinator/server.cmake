swax_test(server_test
  SOURCES server_peers.cc server_requests_test.cc
  DEPS swax_coordinator
  LABELS unit sanitize
  TIMEOUT 180)
