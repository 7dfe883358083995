// A server of TLS without the job's token, on loopback: it has a certificate that it has signed itself, and continues with
// any client that accepts it.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

class TlsImpostor {
 public:
  TlsImpostor() : context_(SSL_CTX_new(TLS_server_method())), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    REQUIRE(X509_sign(certificate, key, EVP_sha256()) > 0);
    REQUIRE(SSL_CTX_use_certificate(context_, certificate) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey(context_, key) == 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof here;
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&here), size) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&here), &size);
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  TlsImpostor(const TlsImpostor&) = delete;
  TlsImpostor& operator=(const TlsImpostor&) = delete;
  ~TlsImpostor() {
    end();
    SSL_CTX_free(context_);
    close(listener_);
  }

  int port() const { return port_; }
  /// Ends the impostor and returns what clients have sent to it inside TLS.
  const std::string& heard() {
    end();
    return heard_;
  }
  /// Ends the impostor and returns the number of clients that came, whether or not they accepted it.
  int clients() {
    end();
    return clients_;
  }

 private:
  void end() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  void serve() {
    for (int socket; (socket = accept(listener_, nullptr, nullptr)) >= 0; close(socket)) {
      ++clients_;
      SSL* ssl = SSL_new(context_);
      SSL_set_fd(ssl, socket);
      std::array<char, 4096> bytes{};
      if (SSL_accept(ssl) == 1)
        for (int got; (got = SSL_read(ssl, bytes.data(), bytes.size())) > 0;)
          heard_.append(bytes.data(), static_cast<size_t>(got));
      SSL_free(ssl);
    }
  }

  SSL_CTX* context_;
  int listener_, port_ = 0, clients_ = 0;
  std::string heard_;
  std::thread thread_;
};
