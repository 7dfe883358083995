// Addresses of objects in stores: s3://bucket/key, gs://bucket/key, https://host/path.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace trainctl {

/// Returns whether a path is an address in a store rather than a file.
inline bool is_url(std::string_view path) {
  for (const std::string_view scheme : {"s3://", "gs://", "https://", "http://"})
    if (path.starts_with(scheme)) return true;
  return false;
}

/// The address as messages show it: without a user name, a password and a query, which may have a signature.
inline std::string shown_url(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return std::string(url);
  std::string_view rest = url.substr(scheme + 3);
  if (const size_t query = rest.find_first_of("?#"); query != std::string_view::npos) rest = rest.substr(0, query);
  const size_t host_end = std::min(rest.find('/'), rest.size());
  if (const size_t user = rest.substr(0, host_end).rfind('@'); user != std::string_view::npos)
    rest = rest.substr(user + 1);
  return std::string(url.substr(0, scheme + 3)) + std::string(rest);
}

/// A text with each query of an address in it replaced by as many asterisks, so that columns stay the same.
inline std::string with_hidden_queries(std::string text) {
  for (size_t at = text.find("://"); at != std::string::npos; at = text.find("://", at + 1)) {
    const size_t end = std::min(text.find_first_of(" \t\r\n\"',]}", at), text.size());
    if (const size_t query = text.find('?', at); query < end)
      for (size_t i = query + 1; i < end; ++i) text[i] = '*';
  }
  return text;
}

}  // namespace trainctl
