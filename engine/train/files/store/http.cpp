// One HTTP request through libcurl.
#include "engine/train/files/store/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <memory>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/files/store/signature.h"

namespace trainctl::object_store {
namespace {

struct CurlLibrary {
  CurlLibrary() { check(curl_global_init(CURL_GLOBAL_DEFAULT) == 0, "libcurl starts"); }
};

struct CurlHandle {
  CurlHandle() {
    static const CurlLibrary library;
    handle = curl_easy_init();
    check(handle != nullptr, "a handle of libcurl needs only memory");
  }
  ~CurlHandle() { curl_easy_cleanup(handle); }
  CurlHandle(const CurlHandle&) = delete;
  CurlHandle& operator=(const CurlHandle&) = delete;
  CURL* handle = nullptr;
};

size_t add_body(char* data, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(data, size * count);
  return size * count;
}

size_t add_header(char* data, size_t size, size_t count, void* to) {
  std::string line(data, size * count);
  auto& headers = *static_cast<std::map<std::string, std::string>*>(to);
  if (line.starts_with("HTTP/")) headers.clear();  // of a redirect
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return size * count;
  const std::string name = lower_case(line.substr(0, colon));
  const size_t begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of("\r\n \t");
  headers[name] = begin == std::string::npos || end < begin ? "" : line.substr(begin, end - begin + 1);
  return size * count;
}

std::string without_entities(const std::string& text) {
  static const std::pair<const char*, char> kEntities[] = {
      {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#34;", '"'}, {"&#39;", '\''}, {"&amp;", '&'}};
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const auto* entity = std::find_if(std::begin(kEntities), std::end(kEntities), [&](const auto& e) {
      return text.compare(at, std::string(e.first).size(), e.first) == 0;
    });
    if (entity == std::end(kEntities)) {
      plain += text[at++];
    } else {
      plain += entity->second;
      at += std::string(entity->first).size();
    }
  }
  return plain;
}

}  // namespace

HttpResponse request_http(const HttpRequest& request) {
  thread_local const CurlHandle of_thread;
  CURL* curl = of_thread.handle;
  curl_easy_reset(curl);  // keeps the connections
  HttpResponse response;
  curl_slist* list = nullptr;
  for (const std::string& header : request.headers) list = curl_slist_append(list, header.c_str());
  if (request.keys)
    for (const std::string& header :
         signature_headers(request.method, request.url, *request.keys, request.region, std::time(nullptr)))
      list = curl_slist_append(list, header.c_str());
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(list, curl_slist_free_all);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.keys ? 0L : 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall_seconds));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.most_seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "trainctl");
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, add_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &response.body);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, add_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &response.headers);
  if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, request.body.c_str());
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_OK)
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
  else
    response.error = curl_easy_strerror(code);  // the text of libcurl's error buffer may have the address
  return response;
}

std::string percent_encoded(const std::string& text, bool keeps_slashes) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~';
    if (is_plain || (keeps_slashes && c == '/'))
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", byte);
  }
  return encoded;
}

std::optional<std::string> next_raw_element(const std::string& xml, const std::string& name, size_t& at) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  const size_t begin = xml.find(open, at);
  if (begin == std::string::npos) return {};
  const size_t end = xml.find(close, begin + open.size());
  if (end == std::string::npos) return {};
  at = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::optional<std::string> next_element(const std::string& xml, const std::string& name, size_t& at) {
  const std::optional<std::string> raw = next_raw_element(xml, name, at);
  return raw ? std::optional(without_entities(*raw)) : std::nullopt;
}

std::string first_element(const std::string& xml, const std::string& name) {
  size_t at = 0;
  return next_element(xml, name, at).value_or("");
}

}  // namespace trainctl::object_store
