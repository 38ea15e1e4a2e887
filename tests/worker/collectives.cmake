# Collectives on device memory: over a simulated device everywhere, over GPUs where they are.
swax_library(swax_collectives_check
  SOURCES collectives_device.cc collectives_lazy_device.cc
  DEPS swax_comm swax_kernels_cpu)
swax_test(local_collectives_device_test
  SOURCES local_collectives_device_test.cc
  DEPS swax_collectives_check
  LABELS unit sanitize)
swax_test(progress_collectives_test
  SOURCES progress_collectives_test.cc
  DEPS swax_comm
  LABELS unit sanitize)
if(SWAX_CUDA_ENABLED)
  swax_test(local_collectives_gpu_test
    SOURCES local_collectives_gpu_test.cc
    DEPS swax_collectives_check
    LABELS gpu
    TIMEOUT 300)
endif()
if(SWAX_NCCL_ENABLED)
  swax_test(nccl_collectives_test
    SOURCES nccl_collectives_test.cc
    DEPS swax_collectives_check swax_comm_nccl
    LABELS gpu
    TIMEOUT 300)
endif()
