// Status and Result<T>: how every fallible function of swax answers. No exceptions are thrown by our code.
// A message names the thing, the value and the limit: "seq_len=0: must be 1..1048576".
// Threads: plain values, no shared state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "proto/base/check.h"

namespace swax {

// A code exists only where some caller acts differently on it.
enum class Code {
  kOk,
  kInvalidArgument,     // the caller's input is wrong; do not retry
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,  // right request, wrong state
  kUnavailable,         // retry later
  kDeadlineExceeded,
  kDataLoss,            // stored bytes are damaged or missing
  kResourceExhausted,   // disk, memory, quota
  kFenced,              // an old epoch or incarnation
  kCancelled,
  kInternal,
};
const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {
    SWAX_CHECK(code != Code::kOk);
  }
  static Status ok_status() { return {}; }
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "context: message", same code. On an ok status: unchanged.
  Status with_context(std::string_view context) const;
  std::string to_string() const;  // "DATA_LOSS: message" or "OK"

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status ok() { return {}; }
inline Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status already_exists(std::string m) { return {Code::kAlreadyExists, std::move(m)}; }
inline Status failed_precondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
inline Status unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status deadline_exceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
inline Status data_loss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
inline Status resource_exhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Status fenced(std::string m) { return {Code::kFenced, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}            // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {     // NOLINT: implicit on purpose
    SWAX_CHECK(!status_.ok());
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    SWAX_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    SWAX_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    SWAX_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace swax

#define SWAX_CONCAT_INNER(a, b) a##b
#define SWAX_CONCAT(a, b) SWAX_CONCAT_INNER(a, b)
// SWAX_TRY(status or result expression): returns its status from this function when it is not ok.
#define SWAX_TRY(expr)                                             \
  do {                                                             \
    if (auto swax_try_ = (expr); !swax_try_.ok()) [[unlikely]]     \
      return ::swax::to_status(swax_try_);                         \
  } while (false)
// SWAX_ASSIGN(auto x, fallible()): declares or assigns x, or returns the status.
#define SWAX_ASSIGN(lhs, expr) SWAX_ASSIGN_IMPL(SWAX_CONCAT(swax_result_, __LINE__), lhs, expr)
#define SWAX_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                     \
  if (!tmp.ok()) [[unlikely]]            \
    return tmp.status();                 \
  lhs = std::move(tmp).value()

namespace swax {
inline const Status& to_status(const Status& s) { return s; }
template <typename T>
const Status& to_status(const Result<T>& r) {
  return r.status();
}
}  // namespace swax
