//! Certificates for one test run: an authority, a server and a client signed by it, as files.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A folder of PEM files; they go with this handle.
pub struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// An authority that nobody else trusts, a server at 127.0.0.1, and a client.
    pub fn make() -> Self {
        let made = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let key = KeyPair::generate().expect("a key");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        let root = authority.self_signed(&key).expect("a certificate");
        made.write("authority.pem", &root.pem());
        let issuer = Issuer::new(authority, key);
        made.issue("server", ExtendedKeyUsagePurpose::ServerAuth, &issuer);
        made.issue("client", ExtendedKeyUsagePurpose::ClientAuth, &issuer);
        made
    }

    /// A file of this folder: `authority.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// TLS arguments of a server that shows its certificate and wants (`clients`: `yes`) or ignores (`no`) the client's.
    pub fn server_arguments(&self, clients: &str) -> Vec<String> {
        let path = |name: &str| self.file(name).display().to_string();
        let pairs = [
            ("--tls-cert-file", path("server.pem")),
            ("--tls-key-file", path("server.key")),
            ("--tls-ca-cert-file", path("authority.pem")),
            ("--tls-auth-clients", clients.to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// `[store]` settings of a gateway that trusts this authority and, if asked, shows the client's certificate.
    pub fn store_settings(&self, client: bool) -> String {
        let line = |name: &str, file: &str| format!("{name} = \"{}\"\n", self.file(file).display());
        let own = line("cert_file", "client.pem") + &line("key_file", "client.key");
        line("ca_file", "authority.pem") + if client { &own } else { "" }
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose, issuer: &Issuer<'_, KeyPair>) {
        let key = KeyPair::generate().expect("a key");
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        // A Sentinel shows its server certificate as a client, too.
        params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(Path::new(&self.file(name)), text).expect("a writable folder");
    }
}
