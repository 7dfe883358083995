// PMI 1.1, served by the mpiexec of MPICH (Hydra) and its derivatives: lines over a socket that each process inherits.
#include "launcher/clusters/pmi.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "engine/base/error.h"

namespace trainctl::clusters {
namespace {

/// Timeout for any response, including that of a barrier: either all processes arrive, or mpiexec ends them.
constexpr int kPatienceMs = 120'000;

int socket_of_environment() {
  const char* text = std::getenv("PMI_FD");
  int fd = -1;
  const std::string value = text == nullptr ? "" : text;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), fd);
  if (error != std::errc() || end != value.data() + value.size() || fcntl(fd, F_GETFD) < 0)
    throw EnvError("PMI_FD is '" + value + "', which is not an open socket; start this process with mpiexec");
  return fd;
}

/// Encodes values, which must not have blanks as JSON does.
std::string hexadecimal(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 15];
  }
  return digits;
}

std::string text_of(const std::string& digits) {
  std::string text;
  for (size_t at = 0; at + 1 < digits.size(); at += 2) {
    unsigned byte = 0;
    std::from_chars(digits.data() + at, digits.data() + at + 2, byte, 16);
    text += static_cast<char>(byte);
  }
  return text;
}

}  // namespace

Pmi::Pmi(int index) : Pmi(index, socket_of_environment()) {}

Pmi::Pmi(int index, int socket) : index_(index), socket_(socket) {
  fcntl(socket_, F_SETFD, FD_CLOEXEC);  // the ranks have no use for it
  try {
    ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
    space_ = ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"];
  } catch (...) {
    close(socket_);  // without a Pmi there is no destructor
    throw;
  }
}

/// mpiexec treats a process that ends without this call as failed.
Pmi::~Pmi() {
  try {
    ask("cmd=finalize", "finalize_ack");
  } catch (const EnvError&) {
    // mpiexec then ends all processes.
  }
  close(socket_);
}

void Pmi::put(const std::string& key, const std::string& value) {
  ask("cmd=put kvsname=" + space_ + " key=" + key_of(index_, key) + " value=" + hexadecimal(value), "put_result");
}

void Pmi::fence() { ask("cmd=barrier_in", "barrier_out"); }

std::string Pmi::get(int index, const std::string& key) {
  return text_of(ask("cmd=get kvsname=" + space_ + " key=" + key_of(index, key), "get_result")["value"]);
}

std::string Pmi::key_of(int index, const std::string& key) const { return key + "." + std::to_string(index); }

Pmi::Fields Pmi::ask(const std::string& request, const std::string& answer) {
  const std::string line = request + "\n";
  if (write(socket_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw EnvError("PMI: cannot send '" + request + "' to mpiexec: " + std::strerror(errno));
  while (text_.find('\n') == std::string::npos) {
    pollfd ready{socket_, POLLIN, 0};
    std::array<char, 4096> buffer{};
    const ssize_t got = poll(&ready, 1, kPatienceMs) > 0 ? read(socket_, buffer.data(), buffer.size()) : 0;
    if (got <= 0) throw EnvError("PMI: mpiexec does not respond to '" + request + "'");
    text_.append(buffer.data(), static_cast<size_t>(got));
  }
  const size_t end = text_.find('\n');
  std::istringstream words(text_.substr(0, end));
  text_.erase(0, end + 1);
  Fields fields;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  const auto code = fields.find("rc");
  if (fields["cmd"] != answer || (code != fields.end() && code->second != "0"))
    throw EnvError("PMI: mpiexec responded to '" + request + "' with " + fields["cmd"] + " " + fields["msg"]);
  return fields;
}

}  // namespace trainctl::clusters
