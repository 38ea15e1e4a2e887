#include "tests/wire/raw_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>

namespace swax {
namespace {

std::string big_endian(uint64_t value, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = bytes; i-- > 0; value >>= 8) text[i] = static_cast<char>(value);
  return text;
}

std::string greeting() {
  std::string bytes(64, '\0');
  bytes[0] = static_cast<char>(0xff);
  bytes[9] = 0x7f;
  bytes[10] = 3;
  bytes.replace(12, 4, "NULL");
  return bytes;
}

std::string property(std::string_view name, std::string_view value) {
  return std::string(1, static_cast<char>(name.size())) + std::string(name) +
         big_endian(value.size(), 4) + std::string(value);
}

std::string ready(std::string_view routing_id) {
  const std::string body =
      std::string("\5READY") + property("Socket-Type", "DEALER") + property("Identity", routing_id);
  return std::string("\4") + static_cast<char>(body.size()) + body;
}

std::string message_frame(std::string_view bytes, bool more) {
  const char flags = static_cast<char>((more ? 1 : 0) | 2);
  return flags + big_endian(bytes.size(), 8) + std::string(bytes);
}

}  // namespace

RawPeer::RawPeer(const std::string& address, std::string_view routing_id) {
  const std::string port_text = address.substr(address.rfind(':') + 1);
  uint16_t port = 0;
  std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
  fd_ = std::move(fd);
  write_all(greeting() + ready(routing_id));
  // Messages before the other side's READY would end the connection.
  std::string heard;
  while (heard.find("READY") == std::string::npos) {
    const std::string more = receive(0);
    heard += more;
    if (more.empty() && !wait(5000)) return;
  }
}

bool RawPeer::wait(int timeout_ms) {
  pollfd item{fd_.get(), POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) > 0 && (item.revents & POLLIN) != 0;
}

bool RawPeer::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool RawPeer::send(std::string_view bytes) { return write_all(message_frame(bytes, false)); }

bool RawPeer::send_parts(const std::vector<std::string>& parts) {
  std::string all;
  for (size_t i = 0; i < parts.size(); ++i) all += message_frame(parts[i], i + 1 < parts.size());
  return write_all(all);
}

bool RawPeer::send_half(uint64_t promised, std::string_view bytes) {
  return write_all(std::string("\2") + big_endian(promised, 8) + std::string(bytes));
}

std::string RawPeer::receive(int timeout_ms) {
  std::string all;
  while (wait(timeout_ms)) {
    char bytes[4096];
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) break;
    all.append(bytes, static_cast<size_t>(got));
  }
  return all;
}

}  // namespace swax
