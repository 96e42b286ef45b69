//! One connection to one endpoint, and the calls over it. Each call has a bound in time.

use std::future::Future;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio_stream::StreamExt;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{self, Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, describe_status};
use crate::messages::{
    AuthenticateRequest, AuthenticateResponse, Compare, Empty, KeyValue, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest, MOD, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::settings::{Endpoint, Settings};
use crate::types::{ENTRIES, Entry, VALUE_BYTES};

type Result<T> = std::result::Result<T, Error>;

/// The longest answer that is taken: more than one value of any size that etcd takes by default.
const MESSAGE_BYTES: usize = 4 << 20;
/// Entries that are asked for at a time, unless they are too long together.
const PAGE: i64 = 64;

/// All entries at a revision.
pub struct Directory {
    pub revision: i64,
    pub entries: Vec<Entry>,
    pub more: bool,
}

#[derive(Clone)]
pub struct Connection {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
    patience: Duration,
}

impl Connection {
    /// Connects, and logs in if there is a login.
    pub async fn open(
        settings: &Settings,
        endpoint: &Endpoint,
        patience: Duration,
    ) -> Result<Self> {
        let mut to = transport::Endpoint::from_shared(endpoint.to_string())
            .map_err(Error::Unreached)?
            .connect_timeout(patience);
        if let Some(tls) = settings.tls.as_ref().filter(|_| endpoint.is_encrypted) {
            let authority = Certificate::from_pem(&tls.authority);
            let mut config = ClientTlsConfig::new().ca_certificate(authority);
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, &key[..]));
            }
            to = to.tls_config(config).map_err(Error::Tls)?;
        }
        let connected = with_patience(patience, to.connect()).await?;
        let grpc = Grpc::new(connected.map_err(Error::Unreached)?);
        let grpc = grpc.max_decoding_message_size(MESSAGE_BYTES);
        let mut this = Self { grpc, token: None, patience };
        if let Some(login) = &settings.login {
            let request = AuthenticateRequest {
                name: login.user.clone(),
                password: login.password.to_string(),
            };
            let answer: std::result::Result<AuthenticateResponse, _> =
                this.call_method("/etcdserverpb.Auth/Authenticate", request).await?;
            let refused = |why| Error::Login { user: login.user.clone(), why };
            let token = answer.map_err(|status| refused(describe_status(&status)))?.token;
            let token = token.parse().map_err(|_| refused("its token is no text".into()))?;
            this.token = Some(token);
        }
        Ok(this)
    }

    /// One request, one answer. Outer errors are of the connection.
    async fn call_method<Q, A>(&mut self, path: &'static str, request: Q) -> Result<CallResult<A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let request = self.build_request(request);
        let calling = async {
            self.grpc.ready().await.map_err(Error::Unreached)?;
            let path = PathAndQuery::from_static(path);
            let answer = self.grpc.unary(request, path, ProstCodec::<Q, A>::default()).await;
            Ok(answer.map(tonic::Response::into_inner))
        };
        with_patience(self.patience, calling).await?
    }

    fn build_request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    pub async fn grant_lease(&mut self, ttl: Duration) -> Result<i64> {
        let request = LeaseGrantRequest { ttl: ttl.as_secs() as i64 };
        let answer: CallResult<LeaseGrantResponse> =
            self.call_method("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(answer.map_err(|status| Error::refused("grant a lease", &status))?.id)
    }

    pub async fn revoke_lease(&mut self, lease: i64) -> Result<()> {
        let request = LeaseRequest { id: lease };
        let answer: CallResult<Empty> =
            self.call_method("/etcdserverpb.Lease/LeaseRevoke", request).await?;
        answer.map(drop).map_err(|status| Error::refused("end a lease", &status))
    }

    /// Whether the lease is there still, with its whole time before it.
    pub async fn keep_alive(&mut self, lease: i64) -> Result<bool> {
        let request = self.build_request(tokio_stream::once(LeaseRequest { id: lease }));
        let calling = async {
            self.grpc.ready().await.map_err(Error::Unreached)?;
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let codec = ProstCodec::<LeaseRequest, LeaseKeepAliveResponse>::default();
            let refused = |status| Error::refused("keep a lease", &status);
            let answer = self.grpc.streaming(request, path, codec).await.map_err(refused)?;
            let first = answer.into_inner().message().await.map_err(refused)?;
            Ok(first.is_some_and(|answer| answer.ttl > 0))
        };
        with_patience(self.patience, calling).await?
    }

    /// Whether there is such a lease.
    pub async fn has_lease(&mut self, lease: i64) -> Result<bool> {
        let request = LeaseRequest { id: lease };
        let answer: CallResult<LeaseKeepAliveResponse> =
            self.call_method("/etcdserverpb.Lease/LeaseTimeToLive", request).await?;
        let answer = answer.map_err(|status| Error::refused("look at a lease", &status))?;
        Ok(answer.ttl > 0)
    }

    async fn read_range(&mut self, request: RangeRequest) -> Result<CallResult<RangeResponse>> {
        self.call_method("/etcdserverpb.KV/Range", request).await
    }

    /// The key, if it is there.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<KeyValue>> {
        let answer =
            self.read_range(RangeRequest { key: key.to_vec(), ..Default::default() }).await?;
        let answer =
            answer.map_err(|status| Error::refused("read the entry of this host", &status));
        Ok(answer?.kvs.pop())
    }

    /// Writes a key, if it is still as it was at `mod_revision` (0: not there); whether it was.
    pub async fn put_entry(&mut self, put: PutRequest, mod_revision: i64) -> Result<bool> {
        let compare =
            Compare { target: MOD, key: put.key.clone(), mod_revision: Some(mod_revision) };
        let request =
            TxnRequest { compare: vec![compare], success: vec![RequestOp { put: Some(put) }] };
        let answer: CallResult<TxnResponse> =
            self.call_method("/etcdserverpb.KV/Txn", request).await?;
        let answer =
            answer.map_err(|status| Error::refused("write the entry of this host", &status));
        Ok(answer?.succeeded)
    }

    /// Reads the directory in pages, which are smaller where values are long: one long entry does
    /// not prevent the others from being read.
    pub async fn read(&mut self, directory: &str) -> Result<Directory> {
        let mut request = RangeRequest {
            key: directory.as_bytes().to_vec(),
            range_end: end_of(directory),
            limit: PAGE,
            ..Default::default()
        };
        let (mut entries, mut more) = (Vec::new(), true);
        while more && entries.len() <= ENTRIES {
            let answer = match self.read_range(request.clone()).await? {
                Ok(answer) => answer,
                Err(status) if status.code() == Code::OutOfRange && !request.keys_only => {
                    request.keys_only = request.limit == 1;
                    request.limit = (request.limit / 2).max(1);
                    continue;
                }
                Err(status) => return Err(Error::refused("list the hosts", &status)),
            };
            let revision = answer.header.as_ref().map_or(0, |header| header.revision);
            if request.revision == 0 {
                request.revision = revision;
            }
            if let Some(last) = answer.kvs.last() {
                request.key = [&last.key[..], b"\0"].concat();
            }
            more = answer.more && !answer.kvs.is_empty();
            let is_too_long = request.keys_only;
            entries.extend(answer.kvs.into_iter().map(|mut kv| {
                if is_too_long {
                    kv.value = vec![0; VALUE_BYTES + 1];
                }
                entry_from(kv, directory)
            }));
            (request.keys_only, request.limit) = (false, PAGE);
        }
        more |= entries.len() > ENTRIES;
        entries.truncate(ENTRIES);
        Ok(Directory { revision: request.revision, entries, more })
    }

    /// Changes of the directory after a revision. It ends if the node has no leader.
    pub async fn watch_directory(
        &mut self,
        directory: &str,
        after: i64,
    ) -> Result<Streaming<WatchResponse>> {
        let create = WatchCreateRequest {
            key: directory.as_bytes().to_vec(),
            range_end: end_of(directory),
            start_revision: after + 1,
            prev_kv: true,
        };
        // It goes on until our end closes.
        let open = tokio_stream::once(WatchRequest { create: Some(create) });
        let mut request = self.build_request(open.chain(tokio_stream::pending()));
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let calling = async {
            self.grpc.ready().await.map_err(Error::Unreached)?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let refused = |status| Error::refused("watch the hosts", &status);
            Ok(self.grpc.streaming(request, path, codec).await.map_err(refused)?.into_inner())
        };
        with_patience(self.patience, calling).await?
    }
}

type CallResult<T> = std::result::Result<T, Status>;

async fn with_patience<T>(patience: Duration, call: impl Future<Output = T>) -> Result<T> {
    let silent = |_| Error::Silent { seconds: patience.as_secs() };
    tokio::time::timeout(patience, call).await.map_err(silent)
}

pub fn entry_from(kv: KeyValue, directory: &str) -> Entry {
    Entry {
        name: name_of(&kv.key, directory),
        value: (kv.value.len() <= VALUE_BYTES).then_some(kv.value),
        created: kv.create_revision,
    }
}

/// The part of a key behind the directory.
pub fn name_of(key: &[u8], directory: &str) -> String {
    let name = key.strip_prefix(directory.as_bytes()).unwrap_or(key);
    // No host has a longer name.
    String::from_utf8_lossy(&name[..name.len().min(VALUE_BYTES)]).into_owned()
}

/// The first key behind all that begin with this prefix, which ends with '/'.
fn end_of(directory: &str) -> Vec<u8> {
    let mut end = directory.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The address of this host from which it reaches an endpoint; nothing is sent.
pub async fn local_address(endpoint: &Endpoint) -> Option<IpAddr> {
    let host = endpoint.host.trim_start_matches('[').trim_end_matches(']');
    let to = tokio::net::lookup_host((host, endpoint.port)).await.ok()?.next()?;
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
