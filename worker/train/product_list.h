// The products of a step and of a validation, found by running the model where nothing is computed,
// with the addresses that its tensors will have. Threads: one.
#pragma once

#include <vector>

#include "kernels/backend_wrapper.h"
#include "kernels/measuring_backend.h"
#include "worker/train/fsdp.h"

namespace swax {

// Keeps the arguments of every product.
class ProductList final : public BackendWrapper {
 public:
  explicit ProductList(MeasuringBackend& measuring) : BackendWrapper(measuring) {}
  Status gemm(Stream& s, const GemmArgs& a) override {
    products_.push_back(a);
    return BackendWrapper::gemm(s, a);
  }
  const std::vector<GemmArgs>& products() const { return products_; }

 private:
  std::vector<GemmArgs> products_;
};

// The units of an Fsdp without values: nothing is gathered, exchanged or added.
class PlacesOnly final : public UnitStore {
 public:
  explicit PlacesOnly(const Fsdp& fsdp) : fsdp_(fsdp) {}
  Result<const UnitTensors*> acquire(int unit, int) override { return &fsdp_.weight_places(unit); }
  Status release(int) override { return ok(); }
  Result<const UnitTensors*> gradient(int unit) override {
    return &fsdp_.slot_gradient_places(unit);
  }
  Status gradient_ready(int) override { return ok(); }

 private:
  const Fsdp& fsdp_;
};

}  // namespace swax
