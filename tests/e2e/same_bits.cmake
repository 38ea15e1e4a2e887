# Digests of the real programs, memory of `generate`. Included by CMakeLists.txt.
add_test(NAME same_bits_e2e
  COMMAND ${SWAX_PYTHON3} -B same_bits_test.py
    --bin $<TARGET_FILE_DIR:swax> --source ${CMAKE_SOURCE_DIR})
set_tests_properties(same_bits_e2e PROPERTIES LABELS e2e TIMEOUT 900 RUN_SERIAL TRUE
  WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR})
swax_e2e_test(generate_test.py 600)
