// Credentials of stores, from the places where their own tools look for them.
#include "engine/train/files/store/credentials.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "engine/base/error.h"

namespace trainctl::object_store {
namespace {

namespace fs = std::filesystem;
using CalendarClock = std::chrono::system_clock;

/// Credentials are renewed this long before they expire.
constexpr auto kRenewBefore = std::chrono::minutes(5);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string text_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : "";
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

/// "2026-11-29T12:00:00Z".
CalendarClock::time_point time_of(const std::string& text) {
  std::tm time{};
  if (strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return CalendarClock::time_point::max();
  return CalendarClock::from_time_t(timegm(&time));
}

struct ExpiringKeys {
  Keys keys;
  CalendarClock::time_point until = CalendarClock::time_point::max();
};

/// Answers of local services, which are there at once or not at all.
HttpResponse ask_locally(HttpRequest request) {
  request.connect_seconds = 1;
  request.most_seconds = 5;
  return request_http(request);
}

std::optional<ExpiringKeys> keys_of_json(const HttpResponse& response) {
  const auto json = nlohmann::json::parse(response.body, nullptr, false);
  if (response.status != 200 || !json.is_object() || !json.contains("AccessKeyId")) return {};
  return ExpiringKeys{{json.value("AccessKeyId", ""), json.value("SecretAccessKey", ""), json.value("Token", "")},
                      time_of(json.value("Expiration", ""))};
}

std::optional<ExpiringKeys> keys_of_web_identity(const std::string& region) {
  const std::string file = variable("AWS_WEB_IDENTITY_TOKEN_FILE"), role = variable("AWS_ROLE_ARN");
  if (file.empty() || role.empty()) return {};
  HttpRequest request;
  request.url = fmt::format(
      "https://sts.{}.amazonaws.com/?Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}"
      "&RoleSessionName=trainctl&WebIdentityToken={}",
      region, percent_encoded(role, false), percent_encoded(trimmed(text_of_file(file)), false));
  const HttpResponse response = request_http(request);
  const auto element = [&](const char* name) { return first_element(response.body, name); };
  ExpiringKeys found{{element("AccessKeyId"), element("SecretAccessKey"), element("SessionToken")},
                     time_of(element("Expiration"))};
  if (response.status != 200 || found.keys.empty())
    throw EnvError(fmt::format("the role of AWS_ROLE_ARN cannot be assumed: {}",
                               response.status == 0 ? response.error : "status " + std::to_string(response.status)));
  return found;
}

std::optional<ExpiringKeys> keys_of_container() {
  std::string url = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (const std::string path = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty())
    url = "http://169.254.170.2" + path;
  if (url.empty()) return {};
  HttpRequest request{url};
  std::string token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty())
    token = trimmed(text_of_file(file));
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  return keys_of_json(ask_locally(request));
}

std::optional<ExpiringKeys> keys_of_instance() {
  if (variable("AWS_EC2_METADATA_DISABLED") == "true") return {};
  const std::string base = "http://169.254.169.254/latest/";
  HttpRequest token_request{base + "api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}};
  const HttpResponse token = ask_locally(token_request);
  if (token.status != 200) return {};
  const std::vector<std::string> headers = {"X-aws-ec2-metadata-token: " + token.body};
  const std::string roles = base + "meta-data/iam/security-credentials/";
  const HttpResponse role = ask_locally({roles, "GET", headers});
  if (role.status != 200) return {};
  return keys_of_json(ask_locally({roles + trimmed(role.body), "GET", headers}));
}

std::string home_file(const char* set, const std::string& below_home) {
  const std::string path = variable(set);
  return path.empty() ? variable("HOME") + "/" + below_home : path;
}

class S3Credentials {
 public:
  S3Settings get(bool renew) {
    const std::lock_guard lock(mutex_);
    if (!has_read_ || renew || CalendarClock::now() + kRenewBefore > keys_.until) read();
    return {keys_.keys, region_, endpoint_};
  }

 private:
  void read() {
    has_read_ = true;
    std::string profile = variable("AWS_PROFILE");
    if (profile.empty()) profile = "default";
    const IniFile config = parse_ini(text_of_file(home_file("AWS_CONFIG_FILE", ".aws/config")));
    const IniFile secrets = parse_ini(text_of_file(home_file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")));
    const auto setting = [&](const char* key) -> std::string {
      for (const auto& [file, section] :
           {std::pair{&secrets, profile}, {&config, profile == "default" ? profile : "profile " + profile}})
        if (const auto found = file->find(section); found != file->end())
          if (const auto value = found->second.find(key); value != found->second.end()) return value->second;
      return "";
    };
    const auto first_of = [](std::initializer_list<std::string> values) {
      for (const std::string& value : values)
        if (!value.empty()) return value;
      return std::string();
    };
    region_ = first_of({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), setting("region"), "us-east-1"});
    endpoint_ = first_of({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"), setting("endpoint_url")});
    while (endpoint_.ends_with('/')) endpoint_.pop_back();
    keys_ = {};
    const Keys from_environment{variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                                variable("AWS_SESSION_TOKEN")};
    const Keys from_file{setting("aws_access_key_id"), setting("aws_secret_access_key"), setting("aws_session_token")};
    if (!from_environment.empty())
      keys_.keys = from_environment;
    else if (auto identity = keys_of_web_identity(region_))
      keys_ = std::move(*identity);
    else if (!from_file.empty())
      keys_.keys = from_file;
    else if (auto container = keys_of_container())
      keys_ = std::move(*container);
    else if (endpoint_.empty())
      if (auto instance = keys_of_instance()) keys_ = std::move(*instance);
  }

  std::mutex mutex_;
  bool has_read_ = false;
  ExpiringKeys keys_;
  std::string region_, endpoint_;
};

std::string base64url(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  while (text.ends_with('=')) text.pop_back();
  for (char& c : text) c = c == '+' ? '-' : c == '/' ? '_' : c;
  return text;
}

/// RS256 of the text by a private key in PEM; empty if the key cannot be used.
std::string signature_of(const std::string& text, const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                      BIO_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  size_t size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (!key || EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size, bytes, text.size()) != 1)
    return "";
  std::string signature(size, '\0');
  if (EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes, text.size()) != 1)
    return "";
  signature.resize(size);
  return signature;
}

class GoogleCredentials {
 public:
  std::string get(bool renew) {
    const std::lock_guard lock(mutex_);
    if (!has_read_ || renew || CalendarClock::now() + kRenewBefore > until_) read();
    return token_.empty() ? "" : "Authorization: Bearer " + token_;
  }

 private:
  void read() {
    has_read_ = true;
    until_ = CalendarClock::time_point::max();
    token_ = variable("GOOGLE_OAUTH_ACCESS_TOKEN");
    if (!token_.empty() || !variable("STORAGE_EMULATOR_HOST").empty()) return;
    const std::string named = variable("GOOGLE_APPLICATION_CREDENTIALS");
    const std::string file =
        named.empty() ? variable("HOME") + "/.config/gcloud/application_default_credentials.json" : named;
    std::error_code error;
    if (fs::exists(file, error)) return read_file(file);
    if (!named.empty()) throw EnvError(named + ": does not exist, but GOOGLE_APPLICATION_CREDENTIALS names it");
    take(ask_locally({"http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token",
                      "GET",
                      {"Metadata-Flavor: Google"}}));
  }

  /// Exchanges the credentials in a file of Google for an access token. Throws EnvError.
  void read_file(const std::string& file) {
    const auto json = nlohmann::json::parse(text_of_file(file), nullptr, false);
    const std::string type = json.is_object() ? json.value("type", "") : "";
    HttpRequest request{"https://oauth2.googleapis.com/token", "POST"};
    if (type == "authorized_user") {
      request.body = fmt::format("grant_type=refresh_token&client_id={}&client_secret={}&refresh_token={}",
                                 percent_encoded(json.value("client_id", ""), false),
                                 percent_encoded(json.value("client_secret", ""), false),
                                 percent_encoded(json.value("refresh_token", ""), false));
    } else if (type == "service_account") {
      const auto now = CalendarClock::to_time_t(CalendarClock::now());
      nlohmann::json claims = {{"iss", json.value("client_email", "")},
                               {"scope", "https://www.googleapis.com/auth/devstorage.read_only"},
                               {"aud", request.url},
                               {"iat", now}};
      claims["exp"] = now + 3600;
      const std::string text = base64url(R"({"alg":"RS256","typ":"JWT"})") + "." + base64url(claims.dump());
      const std::string signature = signature_of(text, json.value("private_key", ""));
      if (signature.empty()) throw EnvError(file + ": its private key cannot be used");
      request.body = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=" + text + "." +
                     base64url(signature);
    } else {
      throw EnvError(file + ": belongs to neither a service account nor a user, the supported kinds of credentials");
    }
    const HttpResponse response = request_http(request);
    take(response);
    if (token_.empty())
      throw EnvError(fmt::format("{}: Google returned no access token for it: {}", file,
                                 response.status == 0 ? response.error : "status " + std::to_string(response.status)));
  }

  void take(const HttpResponse& response) {
    const auto json = nlohmann::json::parse(response.body, nullptr, false);
    if (response.status != 200 || !json.is_object()) return;
    token_ = json.value("access_token", "");
    until_ = CalendarClock::now() + std::chrono::seconds(json.value("expires_in", 3600));
  }

  std::mutex mutex_;
  bool has_read_ = false;
  std::string token_;
  CalendarClock::time_point until_;
};

}  // namespace

IniFile parse_ini(std::string_view text) {
  IniFile file;
  std::string section;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const std::string plain = trimmed(line);
    if (plain.empty() || plain.front() == '#' || plain.front() == ';') continue;
    if (plain.front() == '[') {
      section = trimmed(
          std::string_view(plain).substr(1, plain.find(']') == std::string::npos ? plain.size() : plain.find(']') - 1));
    } else if (const size_t equals = plain.find('='); equals != std::string::npos) {
      file[section][trimmed(std::string_view(plain).substr(0, equals))] =
          trimmed(std::string_view(plain).substr(equals + 1));
    }
  }
  return file;
}

S3Settings s3_settings(bool renew) {
  static auto* credentials = new S3Credentials;  // threads that fetch may use it until the process ends
  return credentials->get(renew);
}

std::string google_authorization(bool renew) {
  static auto* credentials = new GoogleCredentials;
  return credentials->get(renew);
}

}  // namespace trainctl::object_store
