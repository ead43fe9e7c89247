from collections.abc import AsyncIterator, Awaitable

import grpc.aio

from node_plugin.proto import registration_pb2

class RegistrationStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetInfo: grpc.aio.UnaryUnaryMultiCallable[registration_pb2.InfoRequest, registration_pb2.PluginInfo]
    NotifyRegistrationStatus: grpc.aio.UnaryUnaryMultiCallable[registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse]

class RegistrationServicer:
    def GetInfo(
        self,
        request: registration_pb2.InfoRequest,
        context: grpc.aio.ServicerContext[registration_pb2.InfoRequest, registration_pb2.PluginInfo],
        /,
    ) -> Awaitable[registration_pb2.PluginInfo]: ...
    def NotifyRegistrationStatus(
        self,
        request: registration_pb2.RegistrationStatus,
        context: grpc.aio.ServicerContext[registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse],
        /,
    ) -> Awaitable[registration_pb2.RegistrationStatusResponse]: ...

def add_RegistrationServicer_to_server(
    servicer: RegistrationServicer, server: grpc.aio.Server
) -> None: ...
