# `cmake --install BUILD --prefix DIR` and `cpack` (in BUILD) make a bundle: the programs with all libraries
# that they load, Open MPI's programs and plugins with theirs, the presets. It runs where glibc is as new as
# this machine's, from any folder. A GPU's driver (libcuda) is never in it.

# DT_RPATH and not DT_RUNPATH: it also holds for the libraries of a library.
foreach(program swax swax-train)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib")
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()
install(TARGETS swax swax-train RUNTIME DESTINATION bin)
install(PROGRAMS ops/bundle/mpi_program DESTINATION bin RENAME mpirun)
install(PROGRAMS ops/bundle/mpi_program DESTINATION bin RENAME orted)
install(DIRECTORY jobs/ DESTINATION share/swax/jobs FILES_MATCHING PATTERN "*.toml")
install(FILES LICENSE README.md DESTINATION share/swax)
install(FILES ops/bundle/bundle.md DESTINATION . RENAME README.md)

set(SWAX_BUNDLE_PROGRAMS "$<TARGET_FILE:swax>;$<TARGET_FILE:swax-train>")
install(CODE "set(SWAX_BUNDLE_PROGRAMS \"${SWAX_BUNDLE_PROGRAMS}\")
set(SWAX_BUNDLE_MPIRUN \"${MPIEXEC_EXECUTABLE}\")
set(SWAX_BUNDLE_MPI_LIBRARIES \"${MPI_CXX_LIBRARIES}\")")
install(SCRIPT ops/cmake/install_libraries.cmake)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME swax-${PROJECT_VERSION}-linux-x86_64)
if(SWAX_CUDA_ENABLED)
  string(APPEND CPACK_PACKAGE_FILE_NAME -cuda)
endif()
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_STRIP_FILES OFF)
include(CPack)
