# Tests of worker/train: groups of ranks as threads of one process.
swax_library(swax_train_support
  SOURCES train_support.cc
  DEPS swax_train_lib swax_data_fixture swax_kernels_cpu GTest::gtest)
target_compile_definitions(swax_train_support PRIVATE SWAX_SOURCE_DIR="${CMAKE_SOURCE_DIR}")

# What a run in bf16 costs, the yardstick of the test after it, which runs on a device (label gpu;
# skipped where there is none).
swax_library(swax_rounding
  SOURCES rounded_mlstm.cc rounded_swa.cc rounding_backend.cc
  DEPS swax_kernels swax_test_support)
swax_test(rounded_cells_test
  SOURCES rounded_cells_test.cc ../kernels/mlstm_case.cc ../kernels/op_check.cc
          ../kernels/op_views.cc
  DEPS swax_rounding swax_kernels_cpu swax_reference swax_test_support)
if(SWAX_CUDA_ENABLED)
  swax_test(cuda_trainer_test
    SOURCES cuda_trainer_test.cc slot_run.cc
    DEPS swax_rounding swax_train_support swax_model_rig swax_test_support
    LABELS gpu TIMEOUT 900)
endif()

swax_test(train_same_bits_test SOURCES train_same_bits_test.cc DEPS swax_train_support
  LABELS unit sanitize TIMEOUT 900)
swax_test(train_launcher_test SOURCES train_launcher_test.cc DEPS swax_train_lib)
swax_test(train_state_test SOURCES train_state_test.cc DEPS swax_train_support swax_test_support
  LABELS unit sanitize)
swax_test(train_exchange_test SOURCES train_exchange_test.cc DEPS swax_train_support
  LABELS unit sanitize)
swax_test(train_update_test SOURCES train_update_test.cc
  DEPS swax_train_support swax_test_support swax_reference
  LABELS unit sanitize)
# Not under sanitizers: they have an operator new of their own.
swax_test(train_memory_test SOURCES train_memory_test.cc data_allocations.cc
  DEPS swax_train_support)
swax_test(train_resume_test SOURCES train_resume_test.cc DEPS swax_train_support
  LABELS unit sanitize TIMEOUT 600)
swax_test(train_choices_test SOURCES train_choices_test.cc
  DEPS swax_train_support swax_test_support
  LABELS unit sanitize)
swax_test(train_generate_test SOURCES train_generate_test.cc DEPS swax_train_support
  LABELS unit sanitize)
swax_test(train_reporter_test SOURCES train_reporter_test.cc DEPS swax_train_support
  LABELS unit sanitize)
