// SPDX-License-Identifier: Apache-2.0
import java.util.List;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch with HTTP, until its standard input ends. Arguments: its directory, and its port or 0. */
public final class SearchServer {
    private static final class Server extends Node {
        Server(Environment environment) {
            super(environment, List.of(Netty4Plugin.class, CommonAnalysisPlugin.class), false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("node.name", "node")
            .put("cluster.name", "forebay")
            .put("discovery.type", "single-node")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", 0)
            .put("transport.type", "netty4")
            .put("http.type", "netty4")
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        try (Node node = new Server(new Environment(settings, null)).start()) {
            var http = node.injector().getInstance(org.opensearch.http.HttpServerTransport.class);
            System.out.println(http.boundAddress().publishAddress().getPort());
            System.out.flush();
            while (System.in.read() >= 0) {
                // wait for the end
            }
        }
        System.exit(0);
    }
}
