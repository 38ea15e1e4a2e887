# The node agent's shell. The core has its own test in tests/sim.
swax_test(agent_shell_test
  SOURCES agent_files_test.cc agent_orted_command_test.cc agent_outbox_test.cc agent_rank_socket_test.cc
  DEPS swax_agent
  TIMEOUT 60)
