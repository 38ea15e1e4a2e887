#include "storage/container.h"

#include "proto/base/hash.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"

namespace swax {
namespace {

constexpr size_t kAtVersion = 8;
constexpr size_t kAtPayloadBytes = 16;  // between them: four zero bytes

}  // namespace

std::string encode_container(const ContainerKind& kind, std::string_view payload) {
  SWAX_CHECK(kind.magic.size() == kAtVersion);
  std::string bytes(kContainerHeaderBytes, '\0');
  std::memcpy(bytes.data(), kind.magic.data(), kind.magic.size());
  put_le<uint32_t>(bytes.data() + kAtVersion, kind.version);
  put_le<uint64_t>(bytes.data() + kAtPayloadBytes, payload.size());
  bytes += payload;
  char digest[kHashBytes];
  put_hash(digest, xxh3_128(bytes));
  bytes.append(digest, sizeof digest);
  return bytes;
}

Result<std::string_view> decode_container(const ContainerKind& kind, std::string_view bytes) {
  if (bytes.substr(0, kAtVersion) != kind.magic) {
    return data_loss("magic: not " + std::string(kind.magic));
  }
  if (bytes.size() < kContainerHeaderBytes + kHashBytes) {
    return data_loss(to_text(uint64_t{bytes.size()}) + " bytes: cut");
  }
  const uint32_t version = get_le<uint32_t>(bytes.data() + kAtVersion);
  if (version != kind.version) {
    return data_loss("version=" + to_text(uint64_t{version}) + ": must be " +
                     to_text(uint64_t{kind.version}));
  }
  const uint64_t payload_bytes = get_le<uint64_t>(bytes.data() + kAtPayloadBytes);
  if (payload_bytes != bytes.size() - kContainerHeaderBytes - kHashBytes) {
    return data_loss(to_text(uint64_t{bytes.size()}) + " bytes: do not fit a payload of " +
                     to_text(payload_bytes));
  }
  const std::string_view covered = bytes.substr(0, bytes.size() - kHashBytes);
  const Hash128 stored = get_hash(bytes.data() + covered.size());
  const Hash128 computed = xxh3_128(covered);
  if (stored != computed) {
    return data_loss("digest stored " + stored.hex() + ", computed " + computed.hex());
  }
  return covered.substr(kContainerHeaderBytes);
}

}  // namespace swax
