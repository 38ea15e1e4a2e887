# `swax run`: what needs no processes; then processes of shells and of a rank that only pretends.
swax_test(run_units_test
  SOURCES run_mpirun_test.cc run_prepare_test.cc run_result_test.cc run_srun_test.cc
  DEPS swax_cli swax_agent swax_storage
  LABELS unit sanitize)
swax_test(run_process_test
  SOURCES run_child_test.cc run_sweeper_test.cc
  DEPS swax_agent
  TIMEOUT 90 SERIAL)
