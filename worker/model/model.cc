#include "worker/model/model.h"

#include <string>

#include "proto/base/text.h"
#include "worker/model/stack.h"

namespace swax {
namespace {

// Views of the tensors of each unit in a flat buffer in table order.
std::vector<UnitTensors> unit_views(const ModelShape& shape, Tensor flat) {
  SWAX_CHECK(flat.elements() == shape.parameters());
  std::vector<UnitTensors> units(static_cast<size_t>(shape.units()));
  int64_t begin = 0;
  for (const TensorInfo& t : shape.tensors) {
    void* data = flat.rows(begin, t.elements()).data;
    const Tensor view = t.shape.size() == 2 ? Tensor::of(data, flat.dtype, {t.shape[0], t.shape[1]})
                                            : Tensor::of(data, flat.dtype, {t.shape[0]});
    units[static_cast<size_t>(t.unit)].tensors.push_back(view);
    begin += t.elements();
  }
  return units;
}

Status bad_unit(int unit, size_t units) {
  return invalid_argument("unit=" + to_text(unit) + ": must be 0.." +
                          to_text(static_cast<int64_t>(units) - 1));
}

Result<const UnitTensors*> at(const std::vector<UnitTensors>& units, int unit) {
  if (unit < 0 || static_cast<size_t>(unit) >= units.size()) return bad_unit(unit, units.size());
  return &units[static_cast<size_t>(unit)];
}

}  // namespace

Result<std::unique_ptr<Model>> Model::create(const ModelShape& shape) {
  if (shape.layers != static_cast<int64_t>(shape.kinds.size())) {
    return invalid_argument("layers=" + to_text(shape.layers) + ": " + to_text(shape.kinds.size()) +
                            " layer kinds given");
  }
  return std::unique_ptr<Model>(std::make_unique<Stack>(shape));
}

void fill_rope_tables(const ModelShape& shape, Tensor cos_TP, Tensor sin_TP) {
  for (int64_t t = 0; t < cos_TP.dims[0]; ++t) {
    rope_table_row(t, shape.rope_base, cos_TP, sin_TP, t);
  }
}

ResidentStore::ResidentStore(const ModelShape& shape, Tensor weights, Tensor gradients)
    : weights_(unit_views(shape, weights)) {
  if (!gradients.empty()) grads_ = unit_views(shape, gradients);
}

Result<const UnitTensors*> ResidentStore::acquire(int unit, int) { return at(weights_, unit); }

Status ResidentStore::release(int unit) { return to_status(at(weights_, unit)); }

Result<const UnitTensors*> ResidentStore::gradient(int unit) {
  if (grads_.empty()) return failed_precondition("this store holds no gradients");
  return at(grads_, unit);
}

Status ResidentStore::gradient_ready(int unit) { return to_status(at(grads_, unit)); }

}  // namespace swax
