# Tests of worker/data. The tool is a process of its own for what one process cannot show.
swax_executable(data_build_tool SOURCES data_build_tool.cc DEPS swax_data)

swax_library(swax_data_fixture SOURCES data_fixture.cc DEPS swax_data GTest::gtest)
target_compile_definitions(swax_data_fixture PRIVATE
  SWAX_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
  SWAX_DATA_BUILD_TOOL="$<TARGET_FILE:data_build_tool>")
add_dependencies(swax_data_fixture data_build_tool)

swax_test(data_import_test SOURCES data_import_test.cc DEPS swax_data_fixture
  LABELS unit sanitize)
swax_test(data_build_test SOURCES data_build_test.cc DEPS swax_data_fixture
  LABELS unit sanitize SERIAL)
swax_test(data_batch_test SOURCES data_batch_test.cc data_allocations.cc DEPS swax_data_fixture
  LABELS unit sanitize)
swax_test(data_baseline_test SOURCES data_baseline_test.cc DEPS swax_data_fixture
  LABELS unit sanitize)
swax_test(data_kjv_test SOURCES data_kjv_test.cc DEPS swax_data_fixture
  LABELS unit)
