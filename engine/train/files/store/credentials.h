// Credentials of stores, from the places where their own tools look for them.
//
//   s3   AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN);
//        ~/.aws/credentials and ~/.aws/config (AWS_PROFILE); the container's or the instance's role
//   gs   GOOGLE_OAUTH_ACCESS_TOKEN; GOOGLE_APPLICATION_CREDENTIALS or gcloud's application_default_credentials.json
//        (of a service account or a user); the instance's service account
//
// Without any of them requests are anonymous, as public buckets allow. Credentials that expire are renewed.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "engine/train/files/store/http.h"

namespace trainctl::object_store {

/// A file of sections, as ~/.aws/config: section -> key -> value.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;
IniFile parse_ini(std::string_view text);

struct S3Settings {
  Keys keys;             ///< empty: anonymous
  std::string region;    ///< "us-east-1" if none is set
  std::string endpoint;  ///< empty: Amazon's
};
/// Thread-safe. `renew`: asks again, because a store has refused the current ones.
S3Settings s3_settings(bool renew = false);

/// The header "Authorization: Bearer …"; empty: anonymous. Throws EnvError if a file of credentials cannot be used.
std::string google_authorization(bool renew = false);

}  // namespace trainctl::object_store
