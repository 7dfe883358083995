// AWS Signature Version 4 of a request without a body, for the service s3. libcurl signs too, but its versions differ
// in how they encode paths and queries.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "engine/train/files/store/http.h"

namespace trainctl::object_store {

/// The headers that sign the request. `url`: its path and query are encoded, and the query is sorted.
std::vector<std::string> signature_headers(const std::string& method, const std::string& url, const Keys& keys,
                                           const std::string& region, std::time_t now);

}  // namespace trainctl::object_store
