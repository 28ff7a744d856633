//! How to get into a server: its login, database and TLS.

use std::sync::Arc;

use ::redis::Cmd;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::target::Login;

/// What a store URL can't hold: certificates, a password from a file, and how much safety is waited for.
#[derive(Clone, Default)]
pub struct Options {
    /// Instead of the URL's password.
    pub password: Option<String>,
    /// Certificates (PEM) that sign the servers' own; none: those that the machine trusts.
    pub authorities: Option<Vec<u8>>,
    /// Our certificate chain and its key (PEM), for servers that ask for one.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Replicas that must have what moves money, before it counts (`WAIT`); 0: none is waited for.
    pub wait_replicas: u32,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("wait_replicas", &self.wait_replicas).finish_non_exhaustive()
    }
}

/// What one connection needs.
pub(super) struct Access {
    login: Login,
    database: u32,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// Whether the server need not be a primary: sentinels.
    pub(super) any_role: bool,
}

impl Access {
    pub(super) fn new(login: Login, database: u32, tls: Option<Arc<ClientConfig>>, any_role: bool) -> Self {
        Self { login, database, tls, any_role }
    }

    /// The same, for a server that need not be a primary.
    pub(super) fn for_any_role(&self) -> Self {
        Self { login: self.login.clone(), database: self.database, tls: self.tls.clone(), any_role: true }
    }

    /// What is said first, in order.
    pub(super) fn greetings(&self) -> Vec<Cmd> {
        let mut greetings = Vec::new();
        if let Some(password) = &self.login.password {
            let mut auth = ::redis::cmd("AUTH");
            auth.arg(self.login.user.as_deref()).arg(password);
            greetings.push(auth);
        }
        if self.database > 0 {
            greetings.push(::redis::cmd("SELECT").arg(self.database).to_owned());
        }
        greetings
    }
}

/// TLS as the options say.
///
/// # Errors
/// What is wrong with the certificates.
pub(super) fn tls(options: &Options) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match &options.authorities {
        Some(pem) => {
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(|error| format!("store.ca_file: {error}"))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            let (good, _) = roots.add_parsable_certificates(found.certs);
            if good == 0 {
                return Err("this machine trusts no certificate authority; name one by store.ca_file".into());
            }
        }
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("TLS: {error}"))?.with_root_certificates(roots);
    let config = match &options.certificate {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("store.key_file: {error}"))?;
            config
                .with_client_auth_cert(certificates(chain)?, key)
                .map_err(|error| format!("store.cert_file: {error}"))?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found.map_err(|error| format!("a certificate can't be read: {error}"))? {
        none if none.is_empty() => Err("a file of certificates holds none".into()),
        found => Ok(found),
    }
}
