// Lists objects of stores and reads ranges of them, with retries.
//
//   s3://bucket/key       Amazon S3 and compatible stores (AWS_ENDPOINT_URL)
//   gs://bucket/key       Google Cloud Storage
//   https://host/path     any server that answers range requests; no listing
//
// A request that fails because of the network or an overloaded server is repeated, with growing pauses, for up to
// kPatienceSeconds. Messages name addresses without a query or user, and never have credentials.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainctl::object_store {

inline constexpr double kPatienceSeconds = 300;

struct ObjectInfo {
  int64_t bytes = 0;
  std::string version;  ///< its ETag: a read of another version fails
};

/// The addresses that the pattern matches, sorted. In a key, `*` and `?` match no '/', and `**` matches any folders. An
/// address without wildcards is returned if the object exists. Throws EnvError if the store refuses.
std::vector<std::string> matching_objects(const std::string& pattern);

/// Throws EnvError if there is no such object, or the store refuses.
ObjectInfo object_info(const std::string& url);
bool object_exists(const std::string& url);

/// Fills `to` with the bytes from `at` on. Throws EnvError, also if the object has a different version than `info`.
void read_object(const std::string& url, const ObjectInfo& info, int64_t at, std::span<uint8_t> to);

/// Returns whether a pattern's key matches: for tests.
bool matches_key(const std::string& pattern, const std::string& key);

}  // namespace trainctl::object_store
