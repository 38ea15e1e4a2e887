#include "proto/base/status.h"

namespace swax {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "ALREADY_EXISTS";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFenced:
      return "FENCED";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";  // A number from a peer that was cast without a check.
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  std::string message(context);
  message += ": ";
  message += message_;
  return {code_, std::move(message)};
}

std::string Status::to_string() const {
  std::string text = code_name(code_);
  if (ok()) return text;
  text += ": ";
  text += message_;
  return text;
}

}  // namespace swax
