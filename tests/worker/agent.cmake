# The node agent's shell. The core has its own test in tests/coordinator.
swax_test(agent_shell_test
  SOURCES agent_backlog_test.cc agent_files_test.cc agent_launch_watch_test.cc agent_log_limit_test.cc
    agent_link_test.cc agent_orted_command_test.cc agent_outbox_test.cc agent_rank_socket_test.cc
    agent_runner_test.cc agent_srun_rank_test.cc
  DEPS swax_agent
  TIMEOUT 120 SERIAL)
