swax_library(server_peers SOURCES server_peers.cc DEPS swax_coordinator GTest::gtest)
target_compile_definitions(server_peers PRIVATE SWAX_SOURCE_DIR="${CMAKE_SOURCE_DIR}")

swax_test(server_test
  SOURCES server_attempt_test.cc server_requests_test.cc
  DEPS server_peers
  LABELS unit sanitize
  TIMEOUT 180)
swax_test(server_damage_test
  SOURCES server_damage_test.cc server_space_test.cc ../storage/storage_files.cc
  DEPS server_peers
  LABELS unit sanitize
  TIMEOUT 180)
swax_test(server_flood_test
  SOURCES server_flood_test.cc ../wire/hostile_frames.cc ../wire/raw_peer.cc
  DEPS server_peers
  LABELS unit sanitize
  TIMEOUT 180
  SERIAL)
swax_test(server_crash_test
  SOURCES server_crash_test.cc
  DEPS server_peers
  LABELS unit
  TIMEOUT 180
  SERIAL)
add_dependencies(server_crash_test swax)
