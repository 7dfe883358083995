// Lists objects of stores and reads ranges of them, with retries.
#include "engine/train/files/store/objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/spec/read_value.h"
#include "engine/train/files/store/credentials.h"
#include "engine/train/files/store/http.h"

namespace trainctl::object_store {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Address {
  std::string scheme, bucket, key;  ///< an https address has only the scheme
};

Address address_of(const std::string& url) {
  Address address;
  const size_t begin = url.find("://");
  address.scheme = url.substr(0, begin);
  if (address.scheme != "s3" && address.scheme != "gs") return address;
  const size_t slash = std::min(url.find('/', begin + 3), url.size());
  address.bucket = url.substr(begin + 3, slash - begin - 3);
  address.key = slash < url.size() ? url.substr(slash + 1) : "";
  if (address.bucket.empty()) throw EnvError(shown_url(url) + ": has no bucket");
  return address;
}

/// The region of each bucket, as learned from the x-amz-bucket-region header of earlier responses.
class BucketRegions {
 public:
  std::string get(const std::string& bucket, const std::string& otherwise) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(bucket);
    return found == regions_.end() ? otherwise : found->second;
  }
  /// Returns whether it is new.
  bool set(const std::string& bucket, const std::string& region) {
    const std::lock_guard lock(mutex_);
    return regions_.insert_or_assign(bucket, region).second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> regions_;
};

BucketRegions& bucket_regions() {
  static auto* regions = new BucketRegions;  // threads that fetch may use it until the process ends
  return *regions;
}

/// A request for a key, or for the bucket if the key is empty. `query`: sorted and encoded.
HttpRequest request_for(const Address& address, const std::string& url, const std::string& query, bool renew) {
  HttpRequest request;
  const std::string key = percent_encoded(address.key, true), tail = query.empty() ? "" : "?" + query;
  if (address.scheme == "s3") {
    const S3Settings settings = s3_settings(renew);
    request.region = bucket_regions().get(address.bucket, settings.region);
    if (!settings.keys.empty()) request.keys = settings.keys;
    const bool is_host_name = address.bucket.find_first_of("._") == std::string::npos;
    if (!settings.endpoint.empty())
      request.url = settings.endpoint + "/" + address.bucket + "/" + key + tail;
    else if (is_host_name)
      request.url = fmt::format("https://{}.s3.{}.amazonaws.com/{}{}", address.bucket, request.region, key, tail);
    else
      request.url = fmt::format("https://s3.{}.amazonaws.com/{}/{}{}", request.region, address.bucket, key, tail);
  } else if (address.scheme == "gs") {
    const char* emulator = std::getenv("STORAGE_EMULATOR_HOST");
    std::string host = emulator != nullptr && *emulator != '\0' ? emulator : "https://storage.googleapis.com";
    if (host.find("://") == std::string::npos) host = "http://" + host;
    request.url = host + "/" + address.bucket + "/" + key + tail;
    if (const std::string header = google_authorization(renew); !header.empty()) request.headers.push_back(header);
  } else {
    request.url = url;
  }
  return request;
}

/// "NoSuchBucket: The specified bucket does not exist", or the status.
std::string reason_of(const HttpResponse& response) {
  if (response.status == 0) return response.error;
  const std::string code = first_element(response.body, "Code"), message = first_element(response.body, "Message");
  const std::string status = fmt::format("status {}", response.status);
  return code.empty() ? status : fmt::format("{}, {}{}", status, code, message.empty() ? "" : ": " + message);
}

std::string hint_for(const HttpResponse& response, const Address& address) {
  if (response.status != 401 && response.status != 403) return "";
  if (address.scheme == "s3")
    return s3_settings().keys.empty()
               ? "; no credentials were found in AWS_ACCESS_KEY_ID, ~/.aws/credentials or the instance's role"
               : "; the credentials that were found have no access to it";
  return address.scheme == "gs" ? "; run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
                                : "";
}

double max_retry_seconds() {
  const char* text = std::getenv("TRAINCTL_STORE_PATIENCE");  // for tests of stores that do not recover
  const std::optional<double> seconds = text == nullptr ? std::nullopt : parse_number(text);
  return seconds.value_or(kPatienceSeconds);
}

/// Sends the request until the response has one of the wanted statuses. Retries transient errors; throws EnvError
/// otherwise.
HttpResponse send_request(const std::string& url, const Address& address, const std::string& query,
                          const std::vector<std::string>& headers, const std::vector<long>& wanted) {
  constexpr double kFirstPause = 0.1, kMostPause = 10;
  thread_local std::minstd_rand random(std::random_device{}());
  const SteadyClock::time_point start = SteadyClock::now();
  double pause = kFirstPause;
  bool renews = false, has_renewed = false;
  for (int tries = 1;; ++tries) {
    HttpRequest request = request_for(address, url, query, renews);
    request.headers.insert(request.headers.end(), headers.begin(), headers.end());
    HttpResponse response = request_http(request);
    if (std::find(wanted.begin(), wanted.end(), response.status) != wanted.end()) return response;
    renews = false;
    const std::string region = response.header("x-amz-bucket-region");
    if (address.scheme == "s3" && !region.empty() && region != request.region && response.status < 500 &&
        bucket_regions().set(address.bucket, region))
      continue;
    if ((response.status == 401 || response.status == 403) && !has_renewed) {
      renews = has_renewed = true;
      continue;
    }
    const double waited = std::chrono::duration<double>(SteadyClock::now() - start).count();
    if (!response.may_succeed_later() || waited + pause > max_retry_seconds())
      throw EnvError(
          fmt::format("{}: cannot be read: {}{}{}", shown_url(url), reason_of(response), hint_for(response, address),
                      response.may_succeed_later() ? fmt::format(" ({} tries in {:.0f} s)", tries, waited) : ""));
    const double share = std::uniform_real_distribution<double>(0.5, 1.0)(random);
    std::this_thread::sleep_for(std::chrono::duration<double>(pause * share));
    pause = std::min(2 * pause, kMostPause);
  }
}

/// Sizes and versions of objects from listings and earlier requests.
class KnownObjects {
 public:
  std::optional<ObjectInfo> find(const std::string& url) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(url);
    if (found == objects_.end()) return {};
    return found->second;
  }
  void add(const std::string& url, ObjectInfo info) {
    const std::lock_guard lock(mutex_);
    objects_.insert_or_assign(url, std::move(info));
  }
  /// Records that all objects whose URLs begin with `beginning` have been listed.
  void add_listed(std::string beginning) {
    const std::lock_guard lock(mutex_);
    listed_.push_back(std::move(beginning));
  }
  bool is_listed(const std::string& url) {
    const std::lock_guard lock(mutex_);
    return std::any_of(listed_.begin(), listed_.end(), [&](const std::string& one) { return url.starts_with(one); });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> listed_;
  std::map<std::string, ObjectInfo> objects_;
};

KnownObjects& known_objects() {
  static auto* objects = new KnownObjects;
  return *objects;
}

/// Lists all keys of the bucket with the prefix, and records the size and version of each.
std::vector<std::string> list_keys(const Address& address, const std::string& prefix) {
  Address bucket = address;
  bucket.key.clear();
  const std::string root = address.scheme + "://" + address.bucket + "/";
  std::vector<std::string> keys;
  for (std::string token;;) {
    std::string query = "list-type=2&prefix=" + percent_encoded(prefix, false);
    if (!token.empty()) query = "continuation-token=" + percent_encoded(token, false) + "&" + query;
    const HttpResponse page = send_request(root + prefix, bucket, query, {}, {200});
    size_t at = 0;
    while (const auto contents = next_raw_element(page.body, "Contents", at)) {
      const std::string key = first_element(*contents, "Key"), etag = first_element(*contents, "ETag");
      const std::optional<int64_t> bytes = parse_integer(first_element(*contents, "Size"));
      if (key.empty() || !bytes || key.ends_with('/')) continue;
      known_objects().add(root + key, {*bytes, etag});
      keys.push_back(key);
    }
    if (first_element(page.body, "IsTruncated") != "true") break;
    token = first_element(page.body, "NextContinuationToken");
    if (token.empty()) throw EnvError(shown_url(root + prefix) + ": the store ends its list without a next page");
  }
  known_objects().add_listed(root + prefix);
  return keys;
}

/// "bytes 0-0/1234" -> 1234.
std::optional<int64_t> total_of(const std::string& content_range) {
  const size_t slash = content_range.rfind('/');
  return slash == std::string::npos ? std::nullopt : parse_integer(content_range.substr(slash + 1));
}

std::optional<ObjectInfo> ask_info(const std::string& url) {
  const Address address = address_of(url);
  const HttpResponse response = send_request(url, address, "", {"Range: bytes=0-0"}, {200, 206, 404, 416});
  if (response.status == 404) return {};
  std::optional<int64_t> bytes = total_of(response.header("content-range"));
  if (response.status == 200) {  // an empty object, or a server without ranges
    bytes = static_cast<int64_t>(response.body.size());
    if (*bytes > 1) throw EnvError(shown_url(url) + ": its server does not support range requests; download the file");
  }
  if (!bytes && response.status == 416) bytes = 0;  // an empty object has no first byte
  if (!bytes) throw EnvError(shown_url(url) + ": its server does not state its size");
  ObjectInfo info{*bytes, response.header("etag")};
  known_objects().add(url, info);
  return info;
}

/// Matches a key against a glob, component by component; "**" matches any number of components.
bool parts_match(const std::vector<std::string>& pattern, size_t p, const std::vector<std::string>& key, size_t k) {
  if (p == pattern.size()) return k == key.size();
  if (pattern[p] == "**") {
    for (size_t skip = k; skip <= key.size(); ++skip)
      if (parts_match(pattern, p + 1, key, skip)) return true;
    return false;
  }
  return k < key.size() && glob_match(pattern[p], key[k]) && parts_match(pattern, p + 1, key, k + 1);
}

std::vector<std::string> parts_of_key(const std::string& key) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t slash = 0; (slash = key.find('/', begin)) != std::string::npos; begin = slash + 1)
    parts.push_back(key.substr(begin, slash - begin));
  parts.push_back(key.substr(begin));
  return parts;
}

}  // namespace

bool matches_key(const std::string& pattern, const std::string& key) {
  return parts_match(parts_of_key(pattern), 0, parts_of_key(key), 0);
}

std::vector<std::string> matching_objects(const std::string& pattern) {
  const Address address = address_of(pattern);
  const bool can_list = address.scheme == "s3" || address.scheme == "gs";
  if (!can_list || !is_glob(address.key)) {
    if (!can_list && pattern.find('*') != std::string::npos)
      throw EnvError(shown_url(pattern) + ": a web server has no list of files; name each file");
    return object_exists(pattern) ? std::vector<std::string>{pattern} : std::vector<std::string>{};
  }
  const std::string prefix = address.key.substr(0, address.key.find_first_of("*?["));
  std::vector<std::string> found;
  for (const std::string& key : list_keys(address, prefix))
    if (matches_key(address.key, key)) found.push_back(address.scheme + "://" + address.bucket + "/" + key);
  std::sort(found.begin(), found.end());
  return found;
}

ObjectInfo object_info(const std::string& url) {
  if (const auto known = known_objects().find(url)) return *known;
  const std::optional<ObjectInfo> info = ask_info(url);
  if (!info) throw EnvError(shown_url(url) + ": does not exist");
  return *info;
}

bool object_exists(const std::string& url) {
  if (known_objects().find(url)) return true;
  return !known_objects().is_listed(url) && ask_info(url);
}

void read_object(const std::string& url, const ObjectInfo& info, int64_t at, std::span<uint8_t> to) {
  if (to.empty()) return;
  const Address address = address_of(url);
  const auto size = static_cast<int64_t>(to.size());
  std::vector<std::string> headers = {fmt::format("Range: bytes={}-{}", at, at + size - 1)};
  if (!info.version.empty() && !info.version.starts_with("W/")) headers.push_back("If-Match: " + info.version);
  constexpr int kMostShort = 10;
  for (int tries = 0; tries < kMostShort; ++tries) {
    const HttpResponse response = send_request(url, address, "", headers, {200, 206, 404, 412, 416});
    if (response.status == 404) throw EnvError(shown_url(url) + ": no longer exists");
    if (response.status == 412 || response.status == 416)
      throw EnvError(shown_url(url) +
                     ": has changed since the data set was opened: objects must not change during a run");
    const bool is_whole = response.status == 200;
    const size_t skip = is_whole ? static_cast<size_t>(at) : 0;
    if (response.body.size() < skip + to.size()) continue;  // the connection ended early
    std::copy_n(reinterpret_cast<const uint8_t*>(response.body.data()) + skip, to.size(), to.data());
    return;
  }
  throw EnvError(
      fmt::format("{}: byte {}: the store repeatedly sends fewer bytes than it promises", shown_url(url), at));
}

}  // namespace trainctl::object_store
