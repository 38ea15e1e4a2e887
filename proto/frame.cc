#include "proto/frame.h"

#include <google/protobuf/io/coded_stream.h>

#include <cstring>

#include "proto/base/hash.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr char kMagic[4] = {'S', 'W', 'X', '1'};

struct Header {
  char magic[4];
  uint16_t version;
  uint16_t reserved;
  uint32_t bytes;
  uint64_t hash;
};

Header read_header(const char* data) {
  Header h{};
  std::memcpy(h.magic, data, 4);
  std::memcpy(&h.version, data + 4, 2);
  std::memcpy(&h.reserved, data + 6, 2);
  std::memcpy(&h.bytes, data + 8, 4);
  std::memcpy(&h.hash, data + 12, 8);
  return h;
}

FrameProblem check_header(const Header& h) {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return FrameProblem::kMagic;
  if (h.version != kFrameVersion || h.reserved != 0) return FrameProblem::kVersion;
  if (h.bytes > kFramePayloadBytesMax) return FrameProblem::kTooLarge;
  return FrameProblem::kNone;
}

// The library writes to stderr without limit what hostile bytes make it find.
void log_protobuf(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log_debug("frame", "protobuf", {{"says", printable(text, 200)}});
}

}  // namespace

const char* frame_problem_name(FrameProblem p) {
  switch (p) {
    case FrameProblem::kNone:
      return "none";
    case FrameProblem::kShort:
      return "short";
    case FrameProblem::kMagic:
      return "magic";
    case FrameProblem::kVersion:
      return "version";
    case FrameProblem::kLength:
      return "length";
    case FrameProblem::kHash:
      return "hash";
    case FrameProblem::kParse:
      return "parse";
    case FrameProblem::kTooLarge:
      return "too_large";
    case FrameProblem::kCluster:
      return "cluster";
    case FrameProblem::kState:
      return "state";
  }
  return "unknown";
}

Result<std::string> encode_frame(const google::protobuf::MessageLite& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > kFramePayloadBytesMax)
    return resource_exhausted("message of " + to_text(static_cast<uint64_t>(bytes)) +
                              " bytes: a frame holds at most " +
                              to_text(static_cast<uint64_t>(kFramePayloadBytesMax)));
  std::string frame(kFrameHeaderBytes + bytes, '\0');
  if (!message.SerializeToArray(frame.data() + kFrameHeaderBytes, static_cast<int>(bytes)))
    return internal_error("message cannot be serialized");
  const uint32_t length = static_cast<uint32_t>(bytes);
  const uint64_t hash = xxh3_64(frame.data() + kFrameHeaderBytes, bytes);
  std::memcpy(frame.data(), kMagic, sizeof kMagic);
  std::memcpy(frame.data() + 4, &kFrameVersion, sizeof kFrameVersion);
  std::memcpy(frame.data() + 8, &length, sizeof length);
  std::memcpy(frame.data() + 12, &hash, sizeof hash);
  return frame;
}

FrameProblem decode_frame(std::string_view frame, std::string_view* payload) {
  if (frame.size() < kFrameHeaderBytes) return FrameProblem::kShort;
  const Header h = read_header(frame.data());
  if (const FrameProblem p = check_header(h); p != FrameProblem::kNone) return p;
  if (frame.size() != kFrameHeaderBytes + h.bytes) return FrameProblem::kLength;
  *payload = frame.substr(kFrameHeaderBytes);
  return xxh3_64(*payload) == h.hash ? FrameProblem::kNone : FrameProblem::kHash;
}

FrameProblem decode_envelope(std::string_view frame, pb::Envelope* envelope) {
  std::string_view payload;
  if (const FrameProblem p = decode_frame(frame, &payload); p != FrameProblem::kNone) return p;
  static const auto replaced = google::protobuf::SetLogHandler(&log_protobuf);
  static_cast<void>(replaced);
  // A low recursion limit: our messages are flat, hostile ones are deep.
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(payload.data()),
                                            static_cast<int>(payload.size()));
  in.SetRecursionLimit(24);
  const bool parsed = envelope->ParseFromCodedStream(&in) && in.ConsumedEntireMessage();
  return parsed && envelope->body_case() != pb::Envelope::BODY_NOT_SET ? FrameProblem::kNone
                                                                       : FrameProblem::kParse;
}

std::optional<std::string> FrameBuffer::next(FrameProblem* problem) {
  *problem = FrameProblem::kNone;
  if (buffer_.size() < kFrameHeaderBytes) return std::nullopt;
  const Header h = read_header(buffer_.data());
  if (*problem = check_header(h); *problem != FrameProblem::kNone) return std::nullopt;
  const size_t total = kFrameHeaderBytes + h.bytes;
  if (buffer_.size() < total) return std::nullopt;
  std::string payload = buffer_.substr(kFrameHeaderBytes, h.bytes);
  buffer_.erase(0, total);
  if (xxh3_64(payload) != h.hash) {
    *problem = FrameProblem::kHash;
    return std::nullopt;
  }
  return payload;
}

}  // namespace swax
