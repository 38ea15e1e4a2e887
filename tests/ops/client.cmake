# The client's verbs against a real `swax coordinator`.
add_test(NAME client_test
  COMMAND ${SWAX_PYTHON3} ${CMAKE_CURRENT_SOURCE_DIR}/client_test.py --swax $<TARGET_FILE:swax>)
set_tests_properties(client_test PROPERTIES LABELS unit TIMEOUT 300 RUN_SERIAL TRUE)
swax_test(client_session_test
  SOURCES client_session_test.cc
  DEPS swax_cli swax_wire
  LABELS unit)
