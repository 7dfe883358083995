// AWS Signature Version 4 of a request without a body, for the service s3. libcurl signs too, but its versions differ
// in how they encode paths and queries.
#include "engine/train/files/store/signature.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace trainctl::object_store {
namespace {

std::string in_hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string sha256_of(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

std::string hmac_of(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), digest.data(), &size);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

std::string formatted_time(std::time_t now, const char* format) {
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &utc)};
}

/// The part of the address before the path, without scheme and default port.
std::string host_of(const std::string& url, size_t path_at) {
  const size_t begin = url.find("://") + 3;
  std::string host = url.substr(begin, path_at - begin);
  const std::string port = url.starts_with("https") ? ":443" : ":80";
  if (host.ends_with(port)) host.resize(host.size() - port.size());
  return host;
}

}  // namespace

std::vector<std::string> signature_headers(const std::string& method, const std::string& url, const Keys& keys,
                                           const std::string& region, std::time_t now) {
  const size_t path_at = std::min(url.find('/', url.find("://") + 3), url.size());
  const size_t query_at = std::min(url.find('?', path_at), url.size());
  std::string path = url.substr(path_at, query_at - path_at);
  if (path.empty()) path = "/";
  const std::string query = query_at < url.size() ? url.substr(query_at + 1) : "";
  const std::string time = formatted_time(now, "%Y%m%dT%H%M%SZ"), date = time.substr(0, 8);
  const std::string payload = in_hex(sha256_of(""));
  std::string headers =
      fmt::format("host:{}\nx-amz-content-sha256:{}\nx-amz-date:{}\n", host_of(url, path_at), payload, time);
  std::string names = "host;x-amz-content-sha256;x-amz-date";
  std::vector<std::string> sent = {"x-amz-content-sha256: " + payload, "x-amz-date: " + time};
  if (!keys.session.empty()) {
    headers += "x-amz-security-token:" + keys.session + "\n";
    names += ";x-amz-security-token";
    sent.push_back("x-amz-security-token: " + keys.session);
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", method, path, query, headers, names, payload);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", date, region);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, in_hex(sha256_of(canonical)));
  std::string key = "AWS4" + keys.secret;
  for (const std::string& part : {date, region, std::string("s3"), std::string("aws4_request")})
    key = hmac_of(key, part);
  sent.push_back(fmt::format("Authorization: AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                             keys.id, scope, names, in_hex(hmac_of(key, text))));
  return sent;
}

}  // namespace trainctl::object_store
