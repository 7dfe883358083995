// One HTTP request through libcurl. Connections are kept per thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainctl::object_store {

/// Keys of AWS or of a compatible store. Never part of a message.
struct Keys {
  std::string id, secret, session;
  bool empty() const { return id.empty(); }
};

struct HttpRequest {
  std::string url;
  std::string method = "GET";  ///< GET | PUT | POST
  std::vector<std::string> headers = {};
  std::string body = {};
  std::optional<Keys> keys = {};  ///< signs the request with AWS Signature Version 4 …
  std::string region = {};        ///< … for this region and the service s3
  double connect_seconds = 10, stall_seconds = 20, most_seconds = 600;
};

struct HttpResponse {
  long status = 0;    ///< 0: there was no response
  std::string error;  ///< why there was none
  std::string body;
  std::map<std::string, std::string> headers;  ///< names in lower case

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  /// Returns whether the same request may succeed later: no connection, a server that is overloaded or restarts.
  bool may_succeed_later() const { return status == 0 || status == 408 || status == 429 || status >= 500; }
};

HttpResponse request_http(const HttpRequest& request);

/// "%20" for " ", but not for "/" and unreserved characters.
std::string percent_encoded(const std::string& text, bool keeps_slashes);

// For the flat answers of stores, which are too simple for an XML library:

/// The text of the first element <name> from `at` on, with entities replaced; moves `at` to after it. Nothing: there is
/// none.
std::optional<std::string> next_element(const std::string& xml, const std::string& name, size_t& at);
/// The same without replacing entities, for an element that contains others.
std::optional<std::string> next_raw_element(const std::string& xml, const std::string& name, size_t& at);
/// The text of the first element <name>; "": there is none.
std::string first_element(const std::string& xml, const std::string& name);

}  // namespace trainctl::object_store
