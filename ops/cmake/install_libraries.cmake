# Part of `cmake --install`: copies the libraries of the bundle. In: SWAX_BUNDLE_PROGRAMS (built programs),
# SWAX_BUNDLE_MPIRUN, SWAX_BUNDLE_MPI_LIBRARIES. Out, below the prefix: lib/ (libraries), lib/openmpi/bin
# (mpirun, orted), lib/openmpi/plugins, lib/pmix (plugins of PMIx), share/openmpi, etc/openmpi.
set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
find_program(SWAX_READELF readelf REQUIRED)

# Where Open MPI and PMIx keep what they load by name.
get_filename_component(mpi_bin ${SWAX_BUNDLE_MPIRUN} DIRECTORY)
file(REAL_PATH ${SWAX_BUNDLE_MPIRUN} mpirun)
set(orted ${mpi_bin}/orted)
set(mpi_library "")
foreach(library ${SWAX_BUNDLE_MPI_LIBRARIES})
  if(library MATCHES "/libmpi\\.so")
    file(REAL_PATH ${library} mpi_library)
  endif()
endforeach()
get_filename_component(library_folder ${mpi_library} DIRECTORY)
file(GLOB plugins ${library_folder}/openmpi/lib/openmpi3/mca_*.so ${library_folder}/openmpi/mca_*.so)
# Networks and schedulers that we never ask for (ob1 over self, vader, tcp) would bring their drivers.
list(FILTER plugins EXCLUDE REGEX "_(ucx|ofi|openib|psm|psm2|flux|jsm|gridengine|simulator|monitoring|romio321)\\.so$")
list(FILTER plugins EXCLUDE REGEX "/mca_(memheap|spml|sshmem|scoll|atomic|vprotocol)_") # OpenSHMEM
file(GLOB pmix_plugins ${library_folder}/pmix2/lib/pmix/*.so)
if(NOT EXISTS ${orted} OR NOT plugins)
  message(FATAL_ERROR "bundle: Open MPI's files were not found beside ${SWAX_BUNDLE_MPIRUN} and ${mpi_library}")
endif()

file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${SWAX_BUNDLE_PROGRAMS} ${mpirun} ${orted}
  MODULES ${plugins} ${pmix_plugins}
  RESOLVED_DEPENDENCIES_VAR found
  UNRESOLVED_DEPENDENCIES_VAR missing
  # The C library is the system's; libcuda belongs to the driver.
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util|anl|nsl)\\.so" "^libcuda\\.so")
if(missing)
  message(FATAL_ERROR "bundle: libraries not found: ${missing}")
endif()

# Debian's Open MPI looks for its libraries in one fixed folder: relative to the file instead.
function(relocate file to)
  execute_process(COMMAND ${SWAX_READELF} -d ${file} OUTPUT_VARIABLE dynamic ERROR_QUIET)
  if(dynamic MATCHES "Library r(un)?path: \\[([^]]*)\\]")
    set(old "${CMAKE_MATCH_2}")
    if(NOT old MATCHES "ORIGIN")
      file(RPATH_CHANGE FILE ${file} OLD_RPATH "${old}" NEW_RPATH "${to}")
    endif()
  endif()
endfunction()

# One file under its own name, and the name that others ask for as a link.
function(place file folder rpath)
  file(REAL_PATH ${file} real)
  get_filename_component(name ${file} NAME)
  get_filename_component(real_name ${real} NAME)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${folder} TYPE PROGRAM FILES ${real})
  if(NOT name STREQUAL real_name)
    file(CREATE_LINK ${real_name} ${root}/${folder}/${name} SYMBOLIC)
  endif()
  relocate(${root}/${folder}/${real_name} "${rpath}")
endfunction()

foreach(library ${found})
  place(${library} lib "\$ORIGIN")
endforeach()
foreach(plugin ${plugins})
  place(${plugin} lib/openmpi/plugins "\$ORIGIN/../..")
endforeach()
foreach(plugin ${pmix_plugins})
  place(${plugin} lib/pmix "\$ORIGIN/..")
endforeach()
foreach(program ${mpirun} ${orted})
  place(${program} lib/openmpi/bin "\$ORIGIN/../..")
endforeach()
# The agent looks for processes of this name.
if(NOT EXISTS ${root}/lib/openmpi/bin/mpirun)
  get_filename_component(name ${mpirun} NAME)
  file(RENAME ${root}/lib/openmpi/bin/${name} ${root}/lib/openmpi/bin/mpirun)
endif()
get_filename_component(mpi_prefix ${mpi_bin} DIRECTORY)
file(GLOB help_texts ${mpi_prefix}/share/openmpi/help-*.txt)
file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/share/openmpi TYPE FILE FILES ${help_texts})
file(MAKE_DIRECTORY ${root}/etc/openmpi)
file(WRITE ${root}/etc/openmpi/openmpi-mca-params.conf "# swax gives all its settings on the command line.\n")
