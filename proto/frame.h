// Frame of a message: magic "SWX1", u16 version, u16 reserved (0), u32 payload bytes, u64 XXH3-64
// of the payload (all little-endian), payload. The payload is one binary Protobuf message. Decoding
// is total: any bytes give a message or a reason, never a crash. The same frame is used over ZeroMQ
// (one frame = one ZeroMQ frame) and over the ranks' unix socket (frames back to back). Threads:
// pure functions; FrameBuffer is single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/status.h"
#include "proto/control.pb.h"

namespace swax {

constexpr size_t kFrameHeaderBytes = 20;
constexpr size_t kFramePayloadBytesMax =
    256 * 1024 - kFrameHeaderBytes;  // a ZeroMQ frame is at most 256 KiB
constexpr uint16_t kFrameVersion = 1;

// Why a frame was refused; counted by reason and shown by `status`.
enum class FrameProblem {
  kNone,
  kShort,
  kMagic,
  kVersion,
  kLength,
  kHash,
  kParse,
  kTooLarge,
  kCluster,
  kState
};
const char* frame_problem_name(FrameProblem p);

// kResourceExhausted when the message is larger than a frame may be.
Result<std::string> encode_frame(const google::protobuf::MessageLite& message);
// The payload inside `frame`, or why not.
FrameProblem decode_frame(std::string_view frame, std::string_view* payload);
FrameProblem decode_envelope(std::string_view frame, pb::Envelope* envelope);

// Cuts a byte stream into frames. A problem is final: the peer must be dropped.
class FrameBuffer {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // The next payload; nullopt when more bytes are needed. `problem` is set when the stream is
  // broken.
  std::optional<std::string> next(FrameProblem* problem);
  size_t pending() const { return buffer_.size(); }

 private:
  std::string buffer_;
};

}  // namespace swax
