// SHA-256 of files: it names the contents of those that are copied to hosts, and of plugins.
#include "engine/base/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> it{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  check(context_->it && EVP_DigestInit_ex(context_->it.get(), EVP_sha256(), nullptr) == 1, "OpenSSL provides SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) { EVP_DigestUpdate(context_->it.get(), bytes.data(), bytes.size()); }

void Sha256::add_file(const std::string& path) {
  std::vector<char> buffer(1 << 20);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t got = -1;
  while (fd >= 0 && (got = read(fd, buffer.data(), buffer.size())) > 0) add({buffer.data(), static_cast<size_t>(got)});
  const std::string fault = got < 0 ? std::strerror(errno) : "";
  if (fd >= 0) close(fd);
  if (got < 0) throw EnvError("cannot read " + path + ": " + fault);
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_->it.get(), bytes.data(), &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    text += two;
  }
  return text;
}

}  // namespace trainctl
