# The two pure cores: scenarios and tables. tests/sim runs both together.
swax_library(swax_core_rig SOURCES core_rig.cc DEPS swax_coordinator_core swax_jobs GTest::gtest GTest::gmock)
swax_test(coordinator_core_test
  SOURCES core_attempts_test.cc core_checkpoints_test.cc core_growth_room_test.cc core_growth_test.cc
    core_membership_test.cc core_record_test.cc core_requests_test.cc core_scheduler_test.cc
  DEPS swax_core_rig
  LABELS unit)
swax_test(agent_core_test
  SOURCES agent_attempts_test.cc agent_ends_test.cc agent_session_test.cc
  DEPS swax_agent_core swax_jobs
  LABELS unit)
